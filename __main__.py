"""The command line: one file a command stands in replay/commands, this one lists them."""


def main() -> None:
    """Run kvtape."""
    raise SystemExit("not yet")


if __name__ == "__main__":
    main()
