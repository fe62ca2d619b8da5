//! Errors as tables: see [`reports!`](crate::reports!).

/// Makes an enum of errors whose rows say what is reported: the variant and its fields, then what
/// could not be done (`fault` ends the process with 1, `usage` with 2), why, and what to do.
///
/// Each text is that of a `format!` in which the fields are references. `by(…)` stands for an
/// expression that is a [`Report`](crate::Report) already, `maybe_help(…)` for one that is advice
/// or none.
#[macro_export]
macro_rules! reports {
    (@what fault $($text:tt)+) => { $crate::fault(::std::format!($($text)+)) };
    (@what usage $($text:tt)+) => { $crate::usage(::std::format!($($text)+)) };
    (@what by $report:expr) => { $report };
    (@part maybe_help $help:expr) => { $help };
    (@part $part:ident $($text:tt)+) => { ::std::format!($($text)+) };
    (
        $(#[$attribute:meta])*
        pub enum $error:ident {
            $(
                $(#[$row_attribute:meta])*
                $variant:ident $({
                    $( $(#[$field_attribute:meta])* $field:ident : $kind:ty ),* $(,)?
                })? =>
                    $what:ident ( $($what_text:tt)+ ) $( . $part:ident ( $($text:tt)+ ) )* ;
            )+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Debug)]
        #[non_exhaustive]
        #[expect(missing_docs, reason = "a field is what its name says of its variant")]
        pub enum $error {
            $(
                $(#[$row_attribute])*
                $variant $({ $( $(#[$field_attribute])* $field : $kind ),* })?
            ),+
        }

        impl $error {
            /// What, why, and what to do.
            pub fn report(&self) -> $crate::Report {
                match self {
                    $(
                        $error::$variant $({ $( $field ),* })? =>
                            $crate::reports!(@what $what $($what_text)+)
                            $( . $part ( $crate::reports!(@part $part $($text)+) ) )*
                    ),+
                }
            }
        }
    };
}
