//! Lists the volumes that daemons serve on this machine, as `coulter list` does.

use coulter_daemon::{Error, StateDirectory};

fn main() -> Result<(), Error> {
    let Some(state) = StateDirectory::find_existing(None) else {
        println!("no volume was ever attached");
        return Ok(());
    };
    for entry in state.entries()? {
        let device = entry.device.unwrap_or_default();
        println!("{} serves {} at {device}", entry.name, entry.store.display());
    }
    Ok(())
}
