"""Tables, pages and trace files: how results are shown."""
