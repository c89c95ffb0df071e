"""Apache with its event threads, and as a proxy to itself."""

from __future__ import annotations

from program import Program, Results
from site_of_run import Site, check, sha256

from catalogue.wrk import load

CONFIGURATION = """
ServerRoot /etc/apache2
ServerName test
Listen {at}
PidFile {top}/pid
ErrorLog {top}/errors
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule proxy_module /usr/lib/apache2/modules/mod_proxy.so
LoadModule proxy_http_module /usr/lib/apache2/modules/mod_proxy_http.so
User www-data
Group www-data
StartServers 2
DocumentRoot {top}/files
<Directory />
Require all granted
</Directory>
ProxyPass /proxy/ http://{at}/
"""


def _run(site: Site) -> Results:
    port, files = site.port(), site.directory / "files"
    files.mkdir()
    site.data("small", 64).rename(files / "small")
    large = site.data("large", 24 << 20).rename(files / "large")
    configuration = site.directory / "apache.conf"
    configuration.write_text(CONFIGURATION.format(at=site.at(port), top=site.directory))
    site.serve(["apache2", "-f", str(configuration), "-DFOREGROUND"], port)
    url, expected = f"http://{site.at(port)}", sha256(large)
    results: Results = {}
    for name, words in (
        ("large", [f"{url}/large"]),
        ("by the proxy", [f"{url}/proxy/large"]),
        ("small before large", [f"{url}/small", "-o", "got", f"{url}/large"]),
    ):
        site.client(["curl", "-sS", "-f", "-o", "got", *words])
        results[name] = sha256(site.directory / "got")
        check(results[name] == expected, f"{name}: the file is damaged")
    part = site.client(["curl", "-sS", "-f", "-r", "1000-20000000", f"{url}/large"])
    results["a part"] = sha256(part.output)
    load(site, f"{url}/small")
    load(site, f"{url}/proxy/small")
    return results


PROGRAM = Program(
    name="Apache",
    loads="event threads, and a proxy to itself: 24 MiB whole, by the proxy and in part, by checksum; wrk on both",
    packages=["apache2", "curl", "wrk"],
    run=_run,
    quick=False,
)
