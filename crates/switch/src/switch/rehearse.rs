//! What a switch would refuse of a configuration, one thing beside another, without opening any of it.

use super::*;

impl Switch {
    /// Takes a configuration in, and opens nothing: no interface, file, socket or tunnel, and no processor.
    ///
    /// # Errors
    /// What is wrong with it, as [`Switch::start`] says.
    pub fn rehearse(config: &Config) -> Result<(), String> {
        let mut switch = Switch::idle(config)?;
        for port in &config.port {
            switch.rehearse_port(port)?;
        }
        for flow in &config.flow {
            switch.add_flow(flow.clone())?;
        }
        for mirror in &config.mirror {
            let to = switch.new_mirror(mirror)?;
            let (config, plan) = (mirror.clone(), switch.mirror_plan());
            switch.mirrors.push(MirrorRecord { config, to, plan });
        }
        Ok(())
    }

    fn rehearse_port(&mut self, config: &PortConfig) -> Result<(), String> {
        config.check()?;
        let number = self.new_port(&config.name)?;
        let kind = config.kind()?;
        let has_endpoint = match &kind {
            Kind::Vxlan(tunnel) => self.endpoint_worker(config, tunnel)?,
            _ => None,
        };
        let worker = match has_endpoint {
            Some(worker) => worker,
            None => self.worker_for(config, matches!(kind, Kind::Pcap(_)))?,
        };
        let record = PortRecord {
            plan: self.port_plan(config, worker, None),
            kind: kind.name(),
            config: config.clone(),
        };
        self.enter(number, record);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ports that can be had, and something more.
    fn config(directory: &std::path::Path, more: &str) -> Config {
        let port = |name: &str| {
            let path = directory.join(name);
            format!("[[port]]\nname = \"{name}\"\nmemif.path = {path:?}\n")
        };
        Config::parse(&[&port("a"), &port("b"), more].concat()).unwrap()
    }

    #[test]
    fn what_is_right_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let more = "[[port]]\nname = \"far\"\nvxlan = { local = \"192.0.2.1\", remote = \"192.0.2.2\", vni = 1 }\n\
                    [[port]]\nname = \"tap\"\ntap.interface = \"millrace-none\"\n\
                    [[flow]]\nname = \"f\"\nin = \"far\"\nout = [\"a\"]\n\
                    [[mirror]]\nname = \"m\"\nfile = \"/nonexistent/m.pcap\"\nports = [\"tap\"]\n";
        let config = config(directory.path(), more);
        assert_eq!(Switch::rehearse(&config), Ok(()));
        assert_eq!(directory.path().read_dir().unwrap().count(), 0);
        assert!(Switch::inline(&config).is_err(), "there is no such address");
    }

    #[test]
    fn what_starting_refuses_is_refused() {
        let tunnel = |name: &str, more: &str| {
            format!(
                "[[port]]\nname = \"{name}\"\nvxlan = {{ local = \"127.0.0.1\", remote = \"127.0.0.1\", port = 47895, {more} }}\n"
            )
        };
        for (more, why) in [
            (
                "[[port]]\nname = \"a\"\ntap.interface = \"t\"\n".to_owned(),
                "of that name",
            ),
            (
                "[[port]]\nname = \"c\"\nmemif.path = \"/c\"\nworker = 3\n".to_owned(),
                "worker is 3",
            ),
            (
                "[[flow]]\nname = \"f\"\nout = [\"x\"]\n".to_owned(),
                "no port \"x\"",
            ),
            (
                "[[flow]]\nname = \"f\"\nout = [\"a\", \"a\"]\n".to_owned(),
                "twice",
            ),
            (
                "[[flow]]\nname = \"f\"\ndrop = true\n".repeat(2),
                "of that name",
            ),
            (
                "[[mirror]]\nname = \"a\"\nfile = \"/m.pcap\"\n".to_owned(),
                "of that name",
            ),
            (
                "[[mirror]]\nname = \"m\"\nfile = \"/m.pcap\"\nports = [\"x\"]\n".to_owned(),
                "no port \"x\"",
            ),
            (
                [tunnel("c", "vni = 7"), tunnel("d", "vni = 7")].concat(),
                "the same VNI",
            ),
            (tunnel("c", "vnis = { 1 = 7, 2 = 7 }"), "have one VNI"),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let config = config(directory.path(), &more);
            let refused = Switch::rehearse(&config).unwrap_err();
            assert!(refused.contains(why), "{refused}");
            assert_eq!(Switch::inline(&config).unwrap_err(), refused);
        }
    }
}
