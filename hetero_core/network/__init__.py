"""What a model is: types, graph, reader, writer, topology, shapes, parts. No device is known here."""
