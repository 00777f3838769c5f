"""kvtape: a language-model server whose every KV step is an event."""

__version__ = "0.1.0"
