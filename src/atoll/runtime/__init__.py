"""Real processes: a rank plays its rows of a proven schedule over sockets or shared memory."""
