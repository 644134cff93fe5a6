"""What the loaders of a user on a host are doing right now. Loaders publish it; `stoker top` and others read it."""
