//! Labels of containers, by which rules of channels name them: annotations that begin with `millrace.dev/`.
//!
//! The kernel does not know them, and no engine is asked: a hook that engines run while they make a container (`millrace cdi hook label`)
//! writes its labels into a file of root's, which has the container's number for its name. Only containers that the control groups prove
//! are looked up ([`Containment::container_of`](crate::tenant::Containment::container_of)), and only a file that nobody but root, or the
//! agent's own user, can have written counts. A file is a line `KEY=VALUE` for each label; whatever else is in one, there are no labels.

use std::collections::BTreeMap;
use std::fs::{self, Metadata, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

use crate::naming::fits;

/// Where root's engines put the labels of their containers. No container sees it: what they have is another directory.
pub const LABELS_DIRECTORY: &str = "/run/millrace/labels";

/// What the keys of annotations begin with that are labels. Rules name them by what follows.
const PREFIX: &str = "millrace.dev/";

/// Labels of one container, and bytes of a key and of a value. What is beyond is no label.
const COUNT_MAX: usize = 16;
const KEY_BYTES_MAX: usize = 63;
const VALUE_BYTES_MAX: usize = 255;
/// 16 × (63 + `=` + 255 + end of line) = 5 120.
const FILE_BYTES_MAX: usize = COUNT_MAX * (KEY_BYTES_MAX + VALUE_BYTES_MAX + 2);

/// The labels of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels(BTreeMap<String, String>);

impl Labels {
    /// Of a container's annotations, those that are labels: the first 16 by their keys.
    pub fn of_annotations<'a>(annotations: impl IntoIterator<Item = (&'a str, &'a str)>) -> Labels {
        let all = annotations.into_iter().filter_map(|(name, value)| {
            let key = name.strip_prefix(PREFIX)?;
            (is_key(key) && is_value(value)).then(|| (key.to_owned(), value.to_owned()))
        });
        let sorted: BTreeMap<String, String> = all.collect();
        Labels(sorted.into_iter().take(COUNT_MAX).collect())
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text of the file that says them.
    #[must_use]
    pub fn emit(&self) -> String {
        let lines = self.0.iter().map(|(key, value)| format!("{key}={value}\n"));
        lines.collect()
    }

    /// From such a text. `None`: no hook has written it.
    fn parse(text: &str) -> Option<Labels> {
        let mut labels = BTreeMap::new();
        for line in text.lines() {
            let (key, value) = line.split_once('=')?;
            let is_label = is_key(key) && is_value(value);
            if !is_label || labels.insert(key.to_owned(), value.to_owned()).is_some() {
                return None;
            }
        }
        (labels.len() <= COUNT_MAX).then_some(Labels(labels))
    }

    /// Of the container with this number. `None`: it has none, or others could have written them.
    pub(crate) fn read(directory: &Path, number: &str) -> Option<Labels> {
        let path = file_in(directory, number)?;
        let place = fs::symlink_metadata(directory).ok()?;
        if !place.is_dir() || !is_trusted(&place) {
            return None;
        }
        // Should it be a pipe, nobody waits for it.
        let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
        let mut options = OpenOptions::new();
        let file = options.read(true).custom_flags(flags).open(path).ok()?;
        let found = file.metadata().ok()?;
        if !found.is_file() || !is_trusted(&found) {
            return None;
        }
        let mut text = String::new();
        let mut bounded = file.take(FILE_BYTES_MAX as u64 + 1);
        bounded.read_to_string(&mut text).ok()?;
        (text.len() <= FILE_BYTES_MAX)
            .then(|| Labels::parse(&text))
            .flatten()
    }

    /// Whether one is meant by `KEY=VALUE`, or `KEY=`, the beginning of values and a `*`.
    pub(crate) fn fit(&self, pattern: &str) -> bool {
        pattern.split_once('=').is_some_and(|(key, pattern)| {
            let value = self.0.get(key);
            value.is_some_and(|value| fits(pattern, value))
        })
    }
}

/// The file with the labels of a container. `None`: that is no number of a container, so no control group will name it.
#[must_use]
pub fn file_in(directory: &Path, number: &str) -> Option<PathBuf> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (number.len() == 64 && number.bytes().all(is_digit)).then(|| directory.join(number))
}

/// Whether a pattern means labels that there can be: `KEY=VALUE`, or `KEY=`, the beginning of values and a `*`.
pub(crate) fn is_pattern(pattern: &str) -> bool {
    pattern.split_once('=').is_some_and(|(key, value)| {
        let fixed = value.strip_suffix('*').unwrap_or(value);
        is_key(key) && is_value(fixed) && !key.contains('*') && !fixed.contains('*')
    })
}

fn is_key(key: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'=';
    (1..=KEY_BYTES_MAX).contains(&key.len()) && key.bytes().all(is_plain)
}

fn is_value(value: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    value.len() <= VALUE_BYTES_MAX && value.bytes().all(is_plain)
}

fn is_trusted(found: &Metadata) -> bool {
    let is_ours = found.uid() == 0 || found.uid() == geteuid().as_raw();
    is_ours && found.mode() & 0o022 == 0
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const NUMBER: &str = "2f5102ae29a3f18ca9d56498b35440b8d44b2e53c824bb006d3e1a7ab852383e";

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        let named = pairs.iter().map(|(key, value)| (*key, *value));
        Labels(named.map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
    }

    #[test]
    fn labels_are_the_plain_ones_of_millrace_s_annotations() {
        let (long_key, long_value) = (format!("{PREFIX}{}", "k".repeat(64)), "v".repeat(256));
        let found = Labels::of_annotations([
            ("millrace.dev/role", "worker"),
            ("millrace.dev/site", "a b=c*"),
            ("millrace.dev/empty", ""),
            ("role", "x"),
            ("millrace.device/role", "x"),
            ("millrace.dev/", "x"),
            ("millrace.dev/a=b", "x"),
            ("millrace.dev/a b", "x"),
            ("millrace.dev/lines", "x\nrole=admin"),
            ("millrace.dev/long", &long_value),
            ("millrace.dev/umlaut", "ä"),
            (&long_key, "x"),
        ]);
        let wanted = [("empty", ""), ("role", "worker"), ("site", "a b=c*")];
        assert_eq!(found, labels(&wanted));
        assert_eq!(Labels::parse(&found.emit()), Some(found));
    }

    #[test]
    fn the_most_and_longest_that_are_kept_can_be_read() {
        let value = "v".repeat(VALUE_BYTES_MAX);
        let names: Vec<String> = (0..40)
            .map(|i| format!("{PREFIX}{i:0>KEY_BYTES_MAX$}"))
            .collect();
        let kept = Labels::of_annotations(names.iter().map(|name| (name.as_str(), &*value)));
        assert_eq!(kept.0.len(), COUNT_MAX);
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join(NUMBER), kept.emit()).unwrap();
        assert_eq!(Labels::read(place.path(), NUMBER), Some(kept));
    }

    #[test]
    fn a_file_that_no_hook_has_written_is_no_label() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join(NUMBER);
        let more = (0..=COUNT_MAX).map(|i| format!("k{i}=v\n"));
        for text in [
            "role",
            "=worker",
            "role=worker\nrole=admin\n",
            "role=\u{7f}",
            "role=a\n\nsite=b\n",
            &more.collect::<String>(),
            &"x=y\n".repeat(FILE_BYTES_MAX),
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(Labels::read(place.path(), NUMBER), None, "{text:.40}");
        }
        fs::write(&file, [b'a', b'=', 0xff]).unwrap();
        assert_eq!(Labels::read(place.path(), NUMBER), None);
    }

    #[test]
    fn what_others_could_have_written_is_no_label() {
        let outer = tempfile::tempdir().unwrap();
        let place = outer.path().join("labels");
        let file = place.join(NUMBER);
        fs::create_dir(&place).unwrap();
        fs::write(&file, "role=worker\n").unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
        let read = || Labels::read(&place, NUMBER);
        assert_eq!(read(), Some(labels(&[("role", "worker")])));
        for (path, mode) in [(&file, 0o660), (&file, 0o602), (&place, 0o1777)] {
            set(path, mode).unwrap();
            assert_eq!(read(), None, "{path:?} {mode:o}");
            set(path, 0o700).unwrap();
            assert!(read().is_some());
        }
        if geteuid().is_root() {
            for path in [&file, &place] {
                std::os::unix::fs::chown(path, Some(1), None).unwrap();
                assert_eq!(read(), None, "{path:?}");
                std::os::unix::fs::chown(path, Some(0), None).unwrap();
            }
        }
        let link = outer.path().join("link");
        symlink(&place, &link).unwrap();
        assert_eq!(Labels::read(&link, NUMBER), None);
        fs::rename(&file, outer.path().join("elsewhere")).unwrap();
        symlink(outer.path().join("elsewhere"), &file).unwrap();
        assert_eq!(read(), None);
        assert_eq!(Labels::read(&place, "../elsewhere"), None);
    }

    #[test]
    fn patterns_mean_one_value_or_the_beginning_of_several() {
        let labels = labels(&[("role", "worker-1"), ("empty", "")]);
        for (pattern, is_meant) in [
            ("role=worker-1", true),
            ("role=worker-*", true),
            ("role=*", true),
            ("empty=", true),
            ("role=worker", false),
            ("role=", false),
            ("rol=worker-1", false),
            ("site=*", false),
        ] {
            assert!(is_pattern(pattern));
            assert_eq!(labels.fit(pattern), is_meant, "{pattern}");
        }
        for pattern in ["", "role", "=x", "r*=x", "r e=x", "role=a*b", "role=**"] {
            assert!(!is_pattern(pattern), "{pattern}");
        }
    }
}
