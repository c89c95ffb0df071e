"""An nginx that other programs' tests need as well: files, uploads, a proxy to itself, TLS and HTTP/2."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from site_of_run import Site, sha256

from harness.process import Process

SMALL_BYTES = 64
LARGE_BYTES = 48 << 20

CONFIGURATION = """
user root;
daemon off;
worker_processes 3;
pid {top}/nginx.pid;
error_log {top}/error.log warn;
events {{ worker_connections 512; }}
http {{
    access_log off;
    sendfile on;
    client_max_body_size 0;
    client_body_temp_path {top}/body;
    proxy_temp_path {top}/proxy;
    fastcgi_temp_path {top}/fastcgi;
    uwsgi_temp_path {top}/uwsgi;
    scgi_temp_path {top}/scgi;
    upstream origin {{ server {plain}; keepalive 16; }}
    server {{
        listen {plain};
        listen {tls} ssl http2;
        ssl_certificate {top}/certificate.pem;
        ssl_certificate_key {top}/key.pem;
        root {top}/files;
        location /upload/ {{ dav_methods PUT; create_full_put_path on; }}
        location /slow/ {{ alias {top}/files/; limit_rate 24m; }}
        location /proxy/ {{
            proxy_pass http://origin/;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
        }}
    }}
}}
"""


@dataclass(frozen=True)
class Web:
    """A running nginx and what it serves."""

    server: Process
    port: int
    tls_port: int
    top: Path
    small: str
    large: str

    def uploaded(self, name: str) -> str:
        """Checksum of an uploaded file."""
        return sha256(self.top / "files" / "upload" / name)


def certificate(site: Site, directory: Path) -> None:
    """Makes a key and a certificate of its own for the site's address."""
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=millrace-test",
            "-addext",
            f"subjectAltName=IP:{site.address}",
            "-keyout",
            str(directory / "key.pem"),
            "-out",
            str(directory / "certificate.pem"),
        ],
        check=True,
        capture_output=True,
    )


def start(site: Site) -> Web:
    """Starts nginx with three workers."""
    top = site.directory / "nginx"
    (top / "files" / "upload").mkdir(parents=True)
    certificate(site, top)
    port, tls_port = site.port(), site.port()
    for name, size in (("small", SMALL_BYTES), ("large", LARGE_BYTES)):
        site.data(name, size).rename(top / "files" / name)
    configuration = top / "nginx.conf"
    configuration.write_text(CONFIGURATION.format(top=top, plain=site.at(port), tls=site.at(tls_port)))
    server = site.serve(["nginx", "-c", str(configuration), "-p", str(top)], port, tls_port)
    return Web(server, port, tls_port, top, sha256(top / "files" / "small"), sha256(top / "files" / "large"))
