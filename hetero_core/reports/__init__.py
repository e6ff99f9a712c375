"""Views of a plan, one file each: text, JSON, DOT, mermaid, SVG, a page, an ONNX model; and a trace of runs. No plugin's code needed."""
