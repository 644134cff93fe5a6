"""Facts of the host: who lives, how many cores and how much memory, folders of one user, forks, ranks."""
