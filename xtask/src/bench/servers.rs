//! What servers need before they start.

use std::fs;

use anyhow::Result;
use millrace_bench::readers::WRK_SCRIPT;

use super::site::Site;

/// For servers that are told all by their command.
pub(crate) fn nothing(_site: &Site<'_>) -> Result<()> {
    Ok(())
}

/// One worker, a file of 64 bytes, connections that stay as long as the client wants, and the script
/// by which `wrk` prints its percentiles.
pub(crate) fn nginx(site: &Site<'_>) -> Result<()> {
    let dir = site.dir.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|name| format!("    {name}_temp_path {dir}/{name};\n"))
        .collect();
    let configuration = format!(
        "daemon off;\nworker_processes 1;\npid {dir}/nginx.pid;\nerror_log stderr;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n    access_log off;\n    keepalive_requests 1000000000;\n{temporary}\
         \x20   server {{ listen 127.0.0.1:{}; root {dir}; }}\n}}\n",
        site.port,
    );
    fs::write(site.dir.join("nginx.conf"), configuration)?;
    fs::write(site.dir.join("result.lua"), WRK_SCRIPT)?;
    fs::write(site.dir.join("64"), [b'x'; 64])?;
    Ok(())
}

/// A cluster with pgbench's tables at scale 10 (150 MB), made once.
pub(crate) fn postgres(site: &Site<'_>) -> Result<()> {
    if site.dir.join("data").exists() {
        return Ok(());
    }
    site.run_as_user("initdb -D {dir}/data -A trust -U postgres --no-sync")?;
    site.run_as_user(
        "pg_ctl -D {dir}/data -w -s -l {dir}/log -o '-p {port} -h 127.0.0.1 -k {dir}' start",
    )?;
    let loaded =
        site.run_as_user("pgbench -h 127.0.0.1 -p {port} -U postgres -i -q -s 10 postgres");
    site.run_as_user("pg_ctl -D {dir}/data -w -s -m fast stop")?;
    loaded
}
