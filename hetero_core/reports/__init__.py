"""Views of a plan, one file each: text, JSON, DOT and mermaid, a page; and a trace of runs. No plugin's code needed."""
