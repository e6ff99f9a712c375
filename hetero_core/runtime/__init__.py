"""A loaded network and its runs: executable, request, executors, and the container of exported networks."""
