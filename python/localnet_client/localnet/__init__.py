"""The generated package localnet.v1."""
