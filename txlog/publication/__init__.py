"""A topic as tables of other formats, whose metadata name txlog's own files (PROTOCOL.md, "Publication")."""
