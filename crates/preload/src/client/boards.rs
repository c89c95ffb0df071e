//! The boards that this process has mapped: the one that its agent gave it, and older ones on which connections still have their
//! end records.
//!
//! | a board is | becomes | when |
//! |---|---|---|
//! | current | retired | the agent is lost; in a forked child, whose parent's it is |
//! | retired | vacant | no connection of this process has its end record there |
//! | vacant | current | an agent gives us one of the same size |
//!
//! **Forbidden**: unmapping one. A thread that is asleep in the kernel counts itself out of a row when it wakes up, whatever has become of
//! the connection; the addresses stay, and the memory behind them goes.

use std::os::fd::BorrowedFd;

use millrace_shm::board::{Board, Row};

/// A board and its use.
#[derive(Debug)]
struct Known {
    board: &'static Board,
    /// Connections of this process that have their end records there.
    users: u32,
    vacant: bool,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Boards(Vec<Known>);

impl Boards {
    pub(super) const fn new() -> Boards {
        Boards(Vec::new())
    }

    /// Maps a board that an agent gave us.
    pub(super) fn map(&mut self, fd: BorrowedFd<'_>, rows: u32) -> Option<&'static Board> {
        let fits = |known: &&mut Known| {
            known.vacant && known.users == 0 && known.board.row_count() == rows
        };
        if let Some(known) = self.0.iter_mut().find(fits) {
            known.board.refill(fd).ok()?;
            known.vacant = false;
            return Some(known.board);
        }
        let board = Board::attach_rows(fd, rows).ok()?;
        // Some 20 bytes, as many as there were ever boards in use at one time.
        let board: &'static Board = Box::leak(Box::new(board));
        self.0.push(Known {
            board,
            users: 0,
            vacant: false,
        });
        Some(board)
    }

    /// A connection gets its end record.
    pub(super) fn enter(&mut self, row: &Row) {
        if let Some(known) = self.find(row) {
            known.users += 1;
        }
    }

    /// A connection has its end record there no more. `current` is the board that others may still be taken from.
    pub(super) fn leave(&mut self, row: &Row, current: Option<&Board>) {
        if let Some(known) = self.find(row) {
            known.users = known.users.saturating_sub(1);
        }
        self.vacate_unused(current);
    }

    /// Gives the memory of boards back that nobody uses and nobody will.
    pub(super) fn vacate_unused(&mut self, current: Option<&Board>) {
        for known in &mut self.0 {
            let is_current = current.is_some_and(|current| std::ptr::eq(current, known.board));
            if known.users == 0 && !known.vacant && !is_current {
                known.vacant = known.board.vacate().is_ok();
            }
        }
    }

    fn find(&mut self, row: &Row) -> Option<&mut Known> {
        self.0
            .iter_mut()
            .find(|known| known.board.index_of(row).is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::Ordering::Release;
    use std::time::Duration;

    use millrace_shm::board;

    use super::*;
    use crate::client::{self, BOARD, CLIENT};

    /// Each counts the boards of the whole process, or has one.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    fn mapped_boards() -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines()
            .filter(|line| line.contains("memfd:millrace-board"))
            .count()
    }

    #[test]
    fn a_thread_that_waits_while_the_agent_is_lost_takes_no_row_of_its_board() {
        let _alone = ALONE.lock();
        client::configure(c"/nonexistent/agent".to_owned());
        let mut guard = CLIENT.lock().unwrap();
        let client = guard.as_mut().unwrap();
        let fd = board::create(32).unwrap();
        let board = client.boards.map(fd.as_fd(), 32).unwrap();
        BOARD.store(std::ptr::from_ref(board).cast_mut(), Release);
        let lives = board.row(0).unwrap();
        lives.identity.hold_alone(7);
        client.boards.enter(lives);
        client.rows_used = 1;
        let late = std::thread::spawn(|| client::take_row().is_some());
        // Long enough for it to come to the lock.
        std::thread::sleep(Duration::from_millis(100));
        client.lose_agent();
        drop(guard);
        assert!(!late.join().unwrap());
        assert!(lives.identity.is_held_by(7));
        CLIENT
            .lock()
            .unwrap()
            .as_mut()
            .unwrap()
            .boards
            .leave(lives, None);
    }

    #[test]
    fn any_number_of_agents_leaves_one_board_mapped_and_those_in_use() {
        let _alone = ALONE.lock();
        let mut boards = Boards::new();
        let give = |boards: &mut Boards| {
            let fd = board::create(32).unwrap();
            boards.map(fd.as_fd(), 32).unwrap()
        };
        let first = give(&mut boards);
        let long_lived = first.row(3).unwrap();
        boards.enter(long_lived);
        boards.vacate_unused(None);
        let mut last = first;
        for _ in 0..10 {
            last = give(&mut boards);
            let row = last.row(0).unwrap();
            boards.enter(row);
            boards.leave(row, Some(last));
            assert_eq!(mapped_boards(), 2);
            boards.vacate_unused(None);
            assert_eq!(mapped_boards(), 1);
        }
        assert_eq!(boards.0.len(), 2);
        let current = give(&mut boards);
        assert!(std::ptr::eq(current, last), "the addresses are used again");
        boards.leave(long_lived, Some(current));
        assert_eq!(mapped_boards(), 1);
        boards.enter(first.row(0).unwrap());
        assert!(!std::ptr::eq(give(&mut boards), current));
    }
}
