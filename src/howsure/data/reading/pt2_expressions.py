"""Sizes and guards of a `.pt2` file, checked before torch evaluates them as Python.

torch gives an expression to sympy's `eval`, and a guard to `exec`. Here both are parsed, never
evaluated: what is not arithmetic on integers and on the program's own sizes is refused.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Callable

# torch's names of sizes: backed and unbacked, integers and floats. It counts up to the largest
# unbacked one, so a number without bound would never end.
_SYMBOL = re.compile(r"(s|u|zf|zuf)\d{1,4}")
_CHARACTERS = re.compile(r"[\w ()\[\]',.=<>!+\-*/%]*", re.ASCII)
_LONGEST = 20_000  # characters; the sizes of a large vision network have some hundred
_LONGEST_NAME = 1_000  # characters; torch searches names in quadratic time
_DEEPEST = 60  # levels; Python's own parser stops at 200 parentheses
_MOST_BITS = 4_096  # of a value; sizes have 64, and a tower of powers would fill the memory
_SIZE_BITS = 64

# What sympy's `srepr` writes for the expressions that torch makes, and the functions that torch
# knows when it reads them back.
_FUNCTIONS = re.compile(
    r"Add|Mul|Max|Min|max|min|Abs|Mod|PythonMod|floor|ceiling|FloorDiv|CleanDiv|CeilDiv|ModularIndexing"
    r"|Where|(Ceil|Floor|Trunc|Round)ToInt|TruncToFloat|RShift|(Float|Int)TrueDiv|ToFloat|Identity"
    r"|IsNonOverlappingAndDenseIndicator|(Une|E)quality|(Strict)?(Less|Greater)Than|And|Or|Not"
    r"|Eq|Ne|Le|Lt|Ge|Gt"
)
_POWERS = ("Pow", "PowByNatural", "FloatPow", "LShift")
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_SHAPE = ("size", "stride", "storage_offset", "dim", "numel")
_ASSUMPTIONS = frozenset(
    {"integer", "positive", "nonnegative", "negative", "nonpositive", "real", "zero", "nonzero"}
)


class Refused(ValueError):
    """A file that could make torch run more than a network; the message says what is in it."""


def is_symbol(text: str) -> bool:
    """Whether a text is one of torch's names of sizes."""
    return _SYMBOL.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Whether a text can stand in generated Python as a name, and nothing else."""
    plain = text.isascii() and text.isidentifier() and not keyword.iskeyword(text)
    return plain and not text.startswith("__") and len(text) <= _LONGEST_NAME


def expression(text: str) -> str:
    """A size, written anew from its parsed form."""
    return _checked(text, guard=False)


def guard(text: str) -> str:
    """A condition on the sizes of inputs such as `L['x'].size()[0] <= 8`, written anew."""
    return _checked(text, guard=True)


def _checked(text: str, *, guard: bool) -> str:
    shown = text if len(text) < 60 else f"{text[:57]}..."
    refused = Refused(f"its expression {shown!r} is more than arithmetic on sizes")
    if len(text) > _LONGEST or not _CHARACTERS.fullmatch(text):
        raise refused
    try:
        tree = ast.parse(text, mode="eval").body
        if _bits(tree, guard, 0) > _MOST_BITS:
            raise refused
        return ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise refused from None


def _bits(node: ast.expr, guard: bool, depth: int) -> int:
    """A bound on the bits of a value; an error if it is not arithmetic."""

    def bits(*parts: ast.expr) -> list[int]:
        return [_bits(part, guard, depth + 1) for part in parts]

    if depth > _DEEPEST:
        raise ValueError
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return int(value).bit_length() if value == value and abs(value) < 2**64 else 2**20
        case ast.Name(id="true" | "false" | "int_oo"):
            return 1
        case ast.Name(id=name) if not guard and is_symbol(name):
            return _SIZE_BITS
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            return bits(operand)[0]
        case ast.BoolOp(values=values):
            return max(bits(*values))
        case ast.Compare(left=left, ops=ops, comparators=right) if all(map(_orders, ops)):
            return max(bits(left, *right))
        case ast.BinOp(left=base, op=ast.Pow(), right=exponent):
            return _power(bits(base)[0], exponent)
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _OPERATORS):
            return sum(bits(left, right)) + 1
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            return _call(name, args, keywords, bits)
        case _ if guard and _is_shape(node):
            return _SIZE_BITS
    raise ValueError


def _orders(op: ast.cmpop) -> bool:
    return isinstance(op, (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE))


def _power(base: int, exponent: ast.expr) -> int:
    """Bits of a power; its exponent must be a number, as it is or as sympy writes it."""
    match exponent:
        case ast.Call(func=ast.Name(id="Integer"), args=[inner], keywords=[]):
            return _power(base, inner)
        case ast.Call(func=ast.Name(id="Float"), args=[ast.Constant(value=str() as number)]):
            _call("Float", exponent.args, exponent.keywords, lambda: [])
            return int((base + 1) * abs(float(number))) + 1
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _power(base, inner)
        case ast.Constant(value=int() as value):
            return (base + 1) * value
    raise ValueError


def _call(
    name: str, args: list[ast.expr], keywords: list[ast.keyword], bits: Callable[..., list[int]]
) -> int:
    """Bits of what a call gives, with `bits` those of its arguments."""
    match name, args:
        case "Symbol", [ast.Constant(value=str() as symbol)]:
            known = all(
                word.arg in _ASSUMPTIONS
                and isinstance(word.value, ast.Constant)
                and isinstance(word.value.value, bool)
                for word in keywords
            )
            if is_symbol(symbol) and known:
                return _SIZE_BITS
        case "Float", [ast.Constant(value=str() as number)]:
            float(number)
            double = [ast.unparse(word) for word in keywords] in ([], ["precision=53"])
            if double and len(number) < 40 and abs(float(number)) < 2**64:
                return _SIZE_BITS
        case "Integer", [inner] if not keywords and _is_number(inner):
            return bits(inner)[0]
        case "Rational", [above, below] if not keywords and _is_number(above):
            if _is_number(below) and ast.unparse(below) != "0":
                return sum(bits(above, below))
        case _, [base, exponent] if name in _POWERS and not keywords:
            return _power(bits(base)[0], exponent)
        case _ if _FUNCTIONS.fullmatch(name) and args and not keywords:
            return sum(bits(*args)) + len(args)
    raise ValueError


def _is_number(node: ast.expr) -> bool:
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(inner, ast.Constant) and type(inner.value) is int


def _is_shape(node: ast.expr) -> bool:
    """Whether this is `L['x']...`, its `size()[0]`, or another number of its shape."""
    match node:
        case ast.Subscript(value=ast.Name(id="L"), slice=ast.Constant(value=str() as name)):
            return is_name(name)
        case ast.Subscript(value=value, slice=ast.Constant(value=str() as name)):
            return is_name(name) and _is_shape(value)
        case ast.Subscript(value=value, slice=ast.Constant(value=int())):
            return _is_shape(value)
        case ast.Call(func=ast.Attribute(value=value, attr=attr), args=[], keywords=[]):
            return attr in _SHAPE and _is_shape(value)
    return False
