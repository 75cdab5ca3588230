"""The graph machine: a private graph and session, columns, towers, buffers and learning."""
