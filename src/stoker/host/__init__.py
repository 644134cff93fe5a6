"""Facts of the host: which processes live, how many cores and how much memory, folders of one user, forks, ranks."""
