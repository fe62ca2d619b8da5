//! Parses sizes and prints a table of them.

use coulter_terminal::{Size, SizeError, Table};

fn main() -> Result<(), SizeError> {
    let mut table = Table::new(&["TEXT", "BYTES"]);
    for text in ["4096", "32M", "1.5T"] {
        let size: Size = text.parse()?;
        table.row(&[text.to_owned(), size.0.to_string()]);
    }
    println!("{table}");
    assert!("10GB".parse::<Size>().is_err(), "it may mean 10 to the power of 9");
    Ok(())
}
