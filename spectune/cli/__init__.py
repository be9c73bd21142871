"""The command line: parse, call, print, exit code. A file per command."""
