"""The shared memory of one loader, and the lines between its processes."""
