//! Verbs that several kinds of handle have, written once. What differs is the function's name in C, and the participant's in Rust.

/// `wait`, `fd` and `close` of a handle with this participant.
macro_rules! any_handle {
    ($handle:ident, $participant:ident, $wait_for:ident, $wait:ident, $fd:ident, $close:ident) => {
        /// # Safety
        /// The arguments are what the header says.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $wait(
            handle: *mut $handle,
            count: u32,
            timeout_ms: i64,
        ) -> c_int {
            call(|| {
                // SAFETY: as the header demands.
                let participant = &unsafe { there(handle) }?.$participant;
                let are_there = participant.$wait_for(count as usize, patience(timeout_ms));
                are_there.then_some(0).ok_or_else(Failure::timed_out)
            })
        }

        /// # Safety
        /// The arguments are what the header says.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $fd(handle: *mut $handle) -> c_int {
            // SAFETY: as the header demands.
            call(|| Ok(unsafe { there(handle) }?.$participant.as_fd().as_raw_fd()))
        }

        /// # Safety
        /// The arguments are what the header says.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $close(handle: *mut $handle) {
            if !handle.is_null() {
                // SAFETY: made by the function that opens, and not used any more.
                drop(unsafe { Box::from_raw(handle) });
            }
        }
    };
}

/// `loan`, `push`, `return` and `publish` of a handle with this participant, which sends.
macro_rules! sending_handle {
    (
        $handle:ident, $participant:ident, $attach:ident,
        ($loan:ident, $try_loan:ident), ($push:ident = $sent_by:expr, $try_push:ident = $tried_by:expr),
        $return:ident, $publish:ident
    ) => {
        sending_handle!(@loan $handle, $participant, $loan, loan);
        sending_handle!(@loan $handle, $participant, $try_loan, try_loan);
        sending_handle!(@push $handle, $participant, $attach, $push, $sent_by);
        sending_handle!(@push $handle, $participant, $attach, $try_push, $tried_by);

        /// # Safety
        /// The arguments are what the header says.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $return(
            handle: *mut $handle,
            loan: *mut MillraceLoan,
        ) -> c_int {
            call(|| {
                // SAFETY: as the header demands.
                let handle = unsafe { there(handle) }?;
                // SAFETY: as above.
                let place = unsafe { there(loan) }?;
                let detached = handle.loans.take(place.number).ok_or_else(Failure::used)?;
                drop(handle.$participant.$attach(detached));
                Ok(0)
            })
        }

        /// # Safety
        /// The arguments are what the header says.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $publish(handle: *mut $handle) -> c_int {
            call(|| {
                // SAFETY: as the header demands.
                unsafe { there(handle) }?.$participant.publish();
                Ok(0)
            })
        }
    };    (@loan $handle:ident, $participant:ident, $function:ident, $lend:ident) => {
        /// # Safety
        /// The arguments are what the header says.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $function(
            handle: *mut $handle,
            bytes: usize,
            loan: *mut MillraceLoan,
        ) -> c_int {
            call(|| {
                // SAFETY: as the header demands.
                let handle = unsafe { there(handle) }?;
                // SAFETY: as above.
                let place = unsafe { there(loan) }?;
                let mut lent = handle.$participant.$lend(bytes)?;
                *place = MillraceLoan::of(&mut lent);
                place.number = handle.loans.put(lent.detach());
                Ok(0)
            })
        }
    };
    (@push $handle:ident, $participant:ident, $attach:ident, $function:ident, $send:expr) => {
        /// # Safety
        /// The arguments are what the header says.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $function(
            handle: *mut $handle,
            loan: *mut MillraceLoan,
            key_or_null: *const u64,
            number: *mut u64,
        ) -> c_int {
            call(|| {
                // SAFETY: as the header demands.
                let $handle { $participant: sender, loans, .. } = unsafe { there(handle) }?;
                // SAFETY: as above.
                let place = unsafe { there(loan) }?;
                let detached = loan_to_send(loans, place)?;
                let mut lent = sender.$attach(detached);
                lent.truncate(place.bytes);
                // SAFETY: as above.
                let pushed = $send(sender, lent, unsafe { key(key_or_null) });
                let pushed = pushed.map_err(|failed| {
                    loans.put_back(place.number, failed.loan.detach());
                    failed.error
                })?;
                // SAFETY: as above.
                unsafe { store(number, pushed) };
                Ok(0)
            })
        }
    };
}

/// A number that the participant of a handle knows.
macro_rules! counts {
    ($handle:ident, $participant:ident, $counted:ident, $function:ident) => {
        /// # Safety
        /// The arguments are what the header says.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $function(handle: *mut $handle, count: *mut u64) -> c_int {
            call(|| {
                // SAFETY: as the header demands.
                let counted = unsafe { there(handle) }?.$participant.$counted();
                // SAFETY: as above.
                *unsafe { there(count) }? = counted as u64;
                Ok(0)
            })
        }
    };
}

pub(crate) use {any_handle, counts, sending_handle};
