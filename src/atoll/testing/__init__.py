"""Public testing tools: worlds without sockets, faults on purpose, conformance checks."""
