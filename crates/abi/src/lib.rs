//! The shared page between a vcoop guest and its host: words, layout, discovery
