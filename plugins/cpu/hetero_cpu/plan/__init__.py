"""Plans: groups, places, addresses, and the plan of a class of sizes."""
