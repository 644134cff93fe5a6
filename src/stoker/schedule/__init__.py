"""Many jobs, one cluster: who runs, where, with how many cores and how much memory. No torch, no process, no clock."""
