"""The `hetero` command: `main` dispatches, one file per sub-command, each returning an `Answer`; only `main` prints."""
