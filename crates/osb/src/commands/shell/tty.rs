//! The terminal of this side.

use std::io::{IsTerminal, Write};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::failure::Failure;

/// Takes back what programs on the other side may have set and could not reset: another screen, a hidden cursor,
/// marked pastes, reports of the mouse, colours.
const RESET: &[u8] = b"\x1b[?1047l\x1b[?25h\x1b[?2004l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[0m\r\n";

/// Whether people sit at both ends.
pub fn is_interactive() -> bool {
    is_terminal_input() && std::io::stdout().is_terminal()
}

/// Whether standard input is a terminal.
pub fn is_terminal_input() -> bool {
    std::io::stdin().is_terminal()
}

/// Columns and rows of the terminal; `None` where it has none.
pub fn size() -> Option<(u16, u16)> {
    let size = tcgetwinsize(rustix::stdio::stdout()).or_else(|_| tcgetwinsize(rustix::stdio::stdin())).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}

/// A terminal whose keys come as they are; what it was before is put back when this ends, also by a panic.
pub struct Raw {
    before: Termios,
    is_clean: bool,
}

impl Raw {
    /// Takes the terminal of standard input.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn enter() -> Result<Self, Failure> {
        let failed = |error: rustix::io::Errno| Failure::new("CLIENT", format!("take the terminal: {error}"));
        let before = tcgetattr(rustix::stdio::stdin()).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &raw).map_err(failed)?;
        Ok(Self { before, is_clean: false })
    }

    /// Gives it back. After a clean end the programs on the other side have put things in order themselves.
    pub fn leave(mut self, is_clean: bool) {
        self.is_clean = is_clean;
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if !self.is_clean {
            let mut out = std::io::stdout();
            let _ = out.write_all(RESET).and_then(|()| out.flush()); // the terminal may be gone
        }
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.before); // as above
    }
}
