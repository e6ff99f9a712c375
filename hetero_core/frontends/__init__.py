"""The doors of other projects: their public interfaces, answered by a Core.

Each module mirrors one project's interface, so that an application changes an import and keeps its code. A module imports nothing of the
project that it mirrors, unless its page says so.
"""
