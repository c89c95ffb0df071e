"""What the runners of `tests/suites` and `tests/programs` share.

Reading order: `isolate` (namespaces of a run's own), `process` (programs that are started and stopped),
`road` (plain or under Millrace), `cases` (programs of cases), `packages` (Debian packages that a run needs).
"""
