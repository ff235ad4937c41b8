// Symbol visibility of the shared library: everything is hidden except what carries this mark.
#pragma once

#define EVERGLOW_API __attribute__((visibility("default")))
