"""A cluster on one machine: real processes and sockets, network namespaces as ranks' places, queues as links."""
