//! What is set up in steps, and taken down again when one of them fails.

/// A step.
pub(crate) struct Step<T, E> {
    /// What it does.
    pub(crate) act: fn(&mut T) -> Result<(), E>,
    /// Takes back what `act` has done.
    pub(crate) undo: fn(&mut T) -> Result<(), E>,
}

/// Takes one step after the other. If one fails, those before it are undone, the latest first, each
/// whatever becomes of the others; the step that failed has left nothing itself.
///
/// # Errors
/// That of the step; or, as more may be lost by it, the first of what could not be undone.
pub(crate) fn take<T, E>(steps: &[Step<T, E>], subject: &mut T) -> Result<(), E> {
    for (count, step) in steps.iter().enumerate() {
        if let Err(error) = (step.act)(subject) {
            let undone = steps[..count].iter().rev().map(|step| (step.undo)(subject));
            return Err(undone
                .collect::<Vec<_>>()
                .into_iter()
                .find_map(Result::err)
                .unwrap_or(error));
        }
    }
    Ok(())
}

/// A step that leaves nothing that would have to be undone.
pub(crate) fn nothing<T, E>(_: &mut T) -> Result<(), E> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(
        act: fn(&mut String) -> Result<(), char>,
        undo: fn(&mut String) -> Result<(), char>,
    ) -> Step<String, char> {
        Step { act, undo }
    }

    fn told(told: &mut String, letter: char) -> Result<(), char> {
        told.push(letter);
        Ok(())
    }

    #[test]
    fn what_went_before_a_failure_is_undone_in_the_reverse_order() {
        let steps = [
            step(|t| told(t, 'a'), |t| told(t, 'A')),
            step(|t| told(t, 'b'), |t| told(t, 'B')),
            step(|_| Err('c'), |t| told(t, 'C')),
            step(|t| told(t, 'd'), |t| told(t, 'D')),
        ];
        let mut text = String::new();
        assert_eq!(take(&steps, &mut text), Err('c'));
        assert_eq!(text, "abBA");
    }

    #[test]
    fn what_cannot_be_undone_is_told_and_keeps_nothing_else_from_being_undone() {
        let steps = [
            step(|t| told(t, 'a'), |t| told(t, 'A')),
            step(|t| told(t, 'b'), |_| Err('B')),
            step(|_| Err('c'), nothing),
        ];
        let mut text = String::new();
        assert_eq!(take(&steps, &mut text), Err('B'));
        assert_eq!(text, "abA");
        assert_eq!(take(&steps[..2], &mut text), Ok(()));
    }
}
