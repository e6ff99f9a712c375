"""Models: types, graph, reader, writer, topology, shapes, parts. No device is known here."""
