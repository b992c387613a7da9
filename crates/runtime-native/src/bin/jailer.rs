//! The jailer alone, for tests and for the bench: `jailer CONFIG-JSON EXECD-FILE`, request socket on descriptor 3.
//! People run `osb`, which carries execd inside and re-executes itself.

use runtime_native::jailer::{self, JailerConfig};
use runtime_native::sys;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(config), Some(execd)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: jailer CONFIG-JSON EXECD-FILE");
        std::process::exit(2);
    };
    let config: JailerConfig = match serde_json::from_str(&config) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("jailer: read the configuration: {error}");
            std::process::exit(2);
        }
    };
    match std::fs::read(&execd) {
        Ok(program) => jailer::main(sys::inherited(3), config, program),
        Err(error) => {
            eprintln!("jailer: read {execd}: {error}");
            std::process::exit(2);
        }
    }
}
