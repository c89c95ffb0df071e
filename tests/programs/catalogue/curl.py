"""curl: HTTP/1.1, HTTP/2 and TLS; large downloads and uploads, several at once."""

from __future__ import annotations

from program import Program, Results
from site_of_run import Site, check, sha256

import catalogue.web as web


def _run(site: Site) -> Results:
    nginx = web.start(site)
    body = site.data("body", 24 << 20)
    results: Results = {}
    plain, tls = f"http://{site.at(nginx.port)}", f"https://{site.at(nginx.tls_port)}"
    for name, option, top in (
        ("HTTP/1.1", "--http1.1", plain),
        ("HTTP/1.1 over TLS", "--http1.1", tls),
        ("HTTP/2 over TLS", "--http2", tls),
    ):
        curl = ["curl", "-sS", "-f", option, "--cacert", str(nginx.top / "certificate.pem")]
        upload = name.replace("/", "").replace(" ", "")
        version = site.client([*curl, "-o", "got", "-w", "%{http_version}", f"{top}/large"]).text
        site.client([*curl, "-T", str(body), f"{top}/upload/{upload}"])
        several = [word for number in range(4) for word in ("-o", f"got{number}", f"{top}/large")]
        site.client([*curl, "--parallel", *several])
        downloads = [sha256(site.directory / f"got{number}") for number in ("", 0, 1, 2, 3)]
        check(set(downloads) == {nginx.large}, f"{name}: a download is damaged")
        check(nginx.uploaded(upload) == sha256(body), f"{name}: the upload is damaged")
        results[name] = [version, *downloads, nginx.uploaded(upload)]
    return results


PROGRAM = Program(
    name="curl",
    loads="HTTP/1.1, HTTP/2, TLS: 48 MiB down (also 4 at once), 24 MiB up, compared by checksum",
    packages=["curl", "nginx", "openssl"],
    run=_run,
)
