//! On which processors workers run: what the machine has, and what is a sane choice of it.

use std::fs;
use std::io;
use std::path::Path;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// A processor that this program may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processor {
    /// Its number.
    pub number: usize,
    /// The lowest number of those that share its core (SMT).
    pub core: usize,
    /// Its memory's node (NUMA).
    pub node: usize,
    /// The kernel runs nothing on it of its own accord (`isolcpus`).
    pub is_isolated: bool,
}

/// The processors that this program may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// By number.
    pub processors: Vec<Processor>,
}

impl Machine {
    /// Looks at the machine. Isolated processors are none that the kernel gives to a program by itself: it is asked whether it lets this
    /// thread go there, for a moment.
    #[must_use]
    pub fn detect() -> Machine {
        let allowed = match sched_getaffinity(Pid::from_raw(0)) {
            Ok(set) => (0..CpuSet::count()).filter(move |at| set.is_set(*at).unwrap_or(false)),
            Err(_) => return Machine::without_description(),
        };
        let mut allowed: Vec<usize> = allowed.collect();
        let system = Path::new("/sys/devices/system");
        for isolated in list(&system.join("cpu/isolated")) {
            if !allowed.contains(&isolated) && may_use(isolated) {
                allowed.push(isolated);
            }
        }
        allowed.sort_unstable();
        Machine::read(system, &allowed)
    }

    fn without_description() -> Machine {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        Machine::read(Path::new("/nonexistent"), &(0..count).collect::<Vec<_>>())
    }

    /// Of a tree as below `/sys/devices/system`, and the processors that may be used. What the tree does not say is as simple as can be.
    fn read(system: &Path, allowed: &[usize]) -> Machine {
        let isolated = list(&system.join("cpu/isolated"));
        let mut nodes = Vec::new();
        for node in list(&system.join("node/online")) {
            nodes.push((node, list(&system.join(format!("node/node{node}/cpulist")))));
        }
        let processors = allowed.iter().map(|&number| {
            let topology = system.join(format!("cpu/cpu{number}/topology"));
            let siblings = list(&topology.join("thread_siblings_list"));
            let node = nodes.iter().find(|(_, of)| of.contains(&number));
            Processor {
                number,
                core: siblings.into_iter().min().unwrap_or(number),
                node: node.map_or(0, |(node, _)| *node),
                is_isolated: isolated.contains(&number),
            }
        });
        Machine {
            processors: processors.collect(),
        }
    }

    /// Processors for so many workers, or fewer, when there are fewer. All are of one node, as far as it has them: of `near`, where a
    /// device is, or of the one with most cores. Isolated ones come first; then whole cores, the last of them that of processor 0, where
    /// most of the kernel's own work is done; and second threads of cores when no core is left.
    #[must_use]
    pub fn choose(&self, workers: usize, near: Option<usize>) -> Vec<usize> {
        let cores = |node: usize| {
            let of_node = self.processors.iter().filter(|one| one.node == node);
            let mut cores: Vec<usize> = of_node.map(|one| one.core).collect();
            cores.dedup();
            cores.sort_unstable();
            cores.dedup();
            cores.len()
        };
        let nodes = self.processors.iter().map(|one| one.node);
        let largest = nodes.max_by_key(|node| (cores(*node), std::cmp::Reverse(*node)));
        let home = near.or(largest);
        // Which thread of its core it is, among those that may be used.
        let thread = |one: &Processor| {
            let same = self
                .processors
                .iter()
                .filter(|other| other.core == one.core);
            same.filter(|other| other.number < one.number).count()
        };
        let mut chosen: Vec<&Processor> = self.processors.iter().collect();
        chosen.sort_by_key(|one| {
            let is_kernels = one.core == 0 && !one.is_isolated;
            let is_far = Some(one.node) != home;
            (
                is_far,
                one.node,
                !one.is_isolated,
                thread(one),
                is_kernels,
                one.number,
            )
        });
        chosen.iter().take(workers).map(|one| one.number).collect()
    }
}

/// Has the calling thread run on this processor, and on no other one.
///
/// # Errors
/// The kernel's, when there is no such processor, or this program may not use it.
pub fn pin(processor: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(processor)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

fn may_use(processor: usize) -> bool {
    let Ok(before) = sched_getaffinity(Pid::from_raw(0)) else {
        return false;
    };
    let may = pin(processor).is_ok();
    let is_back = sched_setaffinity(Pid::from_raw(0), &before).is_ok();
    may && is_back
}

/// Numbers as the kernel lists them: `0-3,8`. Of a file that is not there, or says something else, none.
fn list(path: &Path) -> Vec<usize> {
    fs::read_to_string(path).map_or(Vec::new(), |text| parse(&text))
}

fn parse(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        let is_sane = first <= last && last < 1 << 16;
        is_sane.then_some(first..=last)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A processor of each of these: its number, core, node, and whether it is isolated.
    fn machine(processors: &[(usize, usize, usize, bool)]) -> Machine {
        let processor =
            |&(number, core, node, is_isolated): &(usize, usize, usize, bool)| Processor {
                number,
                core,
                node,
                is_isolated,
            };
        Machine {
            processors: processors.iter().map(processor).collect(),
        }
    }

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse("\n"), []);
        assert_eq!(parse("7"), [7]);
        assert_eq!(parse("3-1,x,5-,99999999999999999999,6"), [6]);
    }

    #[test]
    fn whole_cores_of_one_node_come_first_and_the_kernel_s_own_last() {
        // Two nodes of two cores of two threads.
        let all: Vec<_> = (0..8).map(|at| (at, at % 4, at % 4 / 2, false)).collect();
        let machine = machine(&all);
        assert_eq!(machine.choose(8, None), [1, 0, 5, 4, 2, 3, 6, 7]);
        assert_eq!(machine.choose(3, Some(1)), [2, 3, 6]);
        assert_eq!(machine.choose(99, Some(7)).len(), 8);
    }

    #[test]
    fn isolated_processors_are_for_workers() {
        let machine = machine(&[
            (0, 0, 0, false),
            (1, 1, 0, false),
            (2, 2, 0, true),
            (3, 3, 0, true),
        ]);
        assert_eq!(machine.choose(3, None), [2, 3, 1]);
    }

    #[test]
    fn a_machine_is_read_from_its_description() {
        let tree = std::env::temp_dir().join(format!("millrace-placement-{}", std::process::id()));
        let write = |name: &str, text: &str| {
            let path = tree.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("cpu/isolated", "3\n");
        write("node/online", "0-1\n");
        write("node/node0/cpulist", "0,2\n");
        write("node/node1/cpulist", "1,3\n");
        for number in 0..4 {
            let siblings = if number % 2 == 0 { "0,2\n" } else { "1,3\n" };
            write(
                &format!("cpu/cpu{number}/topology/thread_siblings_list"),
                siblings,
            );
        }
        let read = Machine::read(&tree, &[0, 1, 3]);
        fs::remove_dir_all(&tree).unwrap();
        assert_eq!(
            read,
            machine(&[(0, 0, 0, false), (1, 1, 1, false), (3, 1, 1, true)])
        );
    }

    #[test]
    fn this_machine_has_a_processor_for_a_worker() {
        let machine = Machine::detect();
        let chosen = machine.choose(1, None);
        assert_eq!(chosen.len(), 1);
        std::thread::spawn(move || pin(chosen[0]).unwrap())
            .join()
            .unwrap();
        assert!(!Machine::without_description().processors.is_empty());
    }
}
