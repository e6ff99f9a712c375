"""Views of a plan, one file each: text, JSON, DOT, mermaid, SVG, a page, an ONNX model; and of runs, a trace. They need no plugin's code."""
