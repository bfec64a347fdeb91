"""Which tests need a C++ compiler."""

import pytest


def has_cpp_compiler():
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        return bool(get_cpp_compiler())
    except Exception:
        return False


needs_compiler = pytest.mark.skipif(not has_cpp_compiler(), reason="there is no C++ compiler")
