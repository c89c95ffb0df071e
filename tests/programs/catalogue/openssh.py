"""OpenSSH: logs in on a server of the test's own, runs commands, copies files both ways, forwards a port."""

from __future__ import annotations

import subprocess

from program import Program, Results
from site_of_run import Site, check, sha256

SERVER_CONFIGURATION = """
Port {port}
ListenAddress {address}
HostKey {top}/host
AuthorizedKeysFile {top}/user.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
Subsystem sftp internal-sftp
"""


def _run(site: Site) -> Results:
    top, port = site.directory, site.port()
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(top / key)], check=True)
    (top / "sshd_config").write_text(SERVER_CONFIGURATION.format(port=port, address=site.address, top=top))
    site.serve(["/usr/sbin/sshd", "-D", "-e", "-f", str(top / "sshd_config")], port)
    options = [
        "-F",
        "none",
        "-i",
        str(top / "user"),
        "-o",
        "BatchMode=yes",
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        f"UserKnownHostsFile={top}/known",
        "-o",
        "LogLevel=ERROR",
    ]
    ssh = ["ssh", *options, "-p", str(port), f"root@{site.address}"]
    big = site.data("big", 32 << 20)
    results: Results = {}
    results["cat there, checksum here"] = sha256(site.client([*ssh, f"cat {big}"]).output)
    results["checksum there"] = site.client([*ssh, f"sha256sum < {big}"]).text.split()[0]
    results["sent to its input"] = site.client([*ssh, "sha256sum"], stdin=big).text.split()[0]
    for name, checksum in results.items():
        check(checksum == sha256(big), f"{name}: damaged")
    results["exit code"] = site.client([*ssh, "exit 7"], codes=(7,)).code
    results["shell"] = site.client([*ssh, "/bin/sh -c 'for n in 1 2 3; do echo line $n; done; echo $((6 * 7))'"]).text
    results["terminal"] = site.client([*ssh[:1], "-tt", *ssh[1:], "stty size; echo on a terminal"]).text.splitlines()[
        -1
    ]
    target = f"root@[{site.address}]" if site.placement.is_ipv6 else f"root@{site.address}"
    for name, route in (
        ("copied there", [str(big), f"{target}:{top}/there"]),
        ("copied back", [f"{target}:{top}/there", str(top / "back")]),
    ):
        site.client(["scp", "-q", *options, "-P", str(port), *route])
        results[name] = sha256(top / ("there" if name == "copied there" else "back"))
        check(results[name] == sha256(big), f"{name}: damaged")
    return results


PROGRAM = Program(
    name="OpenSSH",
    loads="commands, a shell, a terminal, exit codes, 32 MiB through ssh and scp both ways by checksum",
    packages=["openssh-server", "openssh-client"],
    run=_run,
    remark="sshd starts itself again with the connection's socket, and cleans the environment of what it starts",
)
