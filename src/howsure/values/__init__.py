"""Small things that every room uses: trees of tensors, files written atomically, progress."""
