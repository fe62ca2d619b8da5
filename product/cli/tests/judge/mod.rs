//! Rules for the message of a command that cannot work.

#![allow(dead_code, reason = "each test program uses a part of this")]

/// The faults of a message; `words` must be in it.
pub(crate) fn faults_of(
    expected: i32,
    words: &[&str],
    code: Option<i32>,
    message: &str,
) -> Vec<String> {
    let mut faults = Vec::new();
    if code != Some(expected) {
        faults.push(format!("ends with {code:?}, not {expected}"));
    }
    let missing = words.iter().filter(|word| !message.contains(**word));
    faults.extend(missing.map(|word| format!("does not say {word:?}")));
    if expected == 0 {
        return faults;
    }
    if !message.starts_with("error: ") {
        faults.push("does not begin with the error".to_owned());
    }
    if !is_from_parser(message) && !message.contains("\n  why: ") {
        faults.push("does not say why".to_owned());
    }
    let of_the_program = ["panicked", "Os {", "ErrorKind", "os error"];
    if of_the_program.iter().any(|word| message.contains(word)) {
        faults.push("speaks of the program, not of the world".to_owned());
    }
    if message.contains("as a value") || message.contains("'move'") {
        faults.push("gives advice that leads astray".to_owned());
    }
    faults
}

/// True if the parser of the command line says it, in its own form.
pub(crate) fn is_from_parser(message: &str) -> bool {
    message.contains("For more information, try '--help'")
}
