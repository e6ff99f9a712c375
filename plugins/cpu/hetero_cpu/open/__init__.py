"""Plans for all sizes of a class: the planner works with sizes as symbols, and what it asks of them becomes the limits of the class."""
