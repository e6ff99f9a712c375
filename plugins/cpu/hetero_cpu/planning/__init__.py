"""From groups of nodes to a plan, and from a plan to the calls of a run: fusion, places, binding, and the verifier."""
