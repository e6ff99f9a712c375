"""Toolkit for devices that wrap an engine: a program that compiles and runs whole models by itself.

`device` implements the hooks; a plugin adds the opsets and known errors of its engine and the way to compile. `device` uses `probing`
(asks the engine about nodes), `stamping` (relabels opsets), `known_errors` (tables of wrong results), `inspection` (types, shapes and
constants of a node's inputs), `installation` (checks that the engine is installed) and `arrays` (addresses of arrays). This package
contains nothing specific to an engine.
"""
