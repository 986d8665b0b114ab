//! Enums whose variants have names in files.

/// Declares an enum with `COUNT`, `ALL` and the `name` of each variant.
#[macro_export]
macro_rules! named {
    (
        $(#[$about:meta])+
        $vis:vis enum $name:ident { $( $(#[$doc:meta])* $variant:ident = $word:literal ),+ $(,)? }
    ) => {
        $(#[$about])+
        $vis enum $name { $( $(#[$doc])* $variant, )+ }

        #[allow(dead_code, reason = "not every such enum needs all of them")]
        impl $name {
            /// All, in order.
            $vis const ALL: [Self; Self::COUNT] = [$( Self::$variant ),+];

            /// How many there are.
            $vis const COUNT: usize = [$( $word ),+].len();

            /// Name in files.
            $vis fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => $word, )+
                }
            }
        }
    };
}
