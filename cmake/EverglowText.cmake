# The libraries of the translation model that come without a CMake package, as imported targets; the installed package includes
# this file too. Not by pkg-config: SentencePiece's file asks on Debian 13 for protobuf's headers, which nobody here needs.

# everglow_text_library(target header library...)
function(everglow_text_library target header)
  if(TARGET ${target})
    return()
  endif()
  find_path(${target}_INCLUDE_DIR ${header})
  mark_as_advanced(${target}_INCLUDE_DIR)
  set(paths "")
  foreach(library ${ARGN})
    find_library(${target}_${library} ${library})
    mark_as_advanced(${target}_${library})
    list(APPEND paths ${${target}_${library}})
  endforeach()
  if(NOT ${target}_INCLUDE_DIR OR "${paths}" MATCHES "NOTFOUND")
    message(FATAL_ERROR "everglow::gnmt needs ${header} and the libraries ${ARGN}: on Debian install libsentencepiece-dev and "
                        "libutf8proc-dev, or build the library alone with -DEVERGLOW_TOOL=OFF")
  endif()
  add_library(${target} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${target} SYSTEM INTERFACE ${${target}_INCLUDE_DIR})
  target_link_libraries(${target} INTERFACE ${paths})
endfunction()

everglow_text_library(everglow_sentencepiece sentencepiece_processor.h sentencepiece sentencepiece_train)
everglow_text_library(everglow_utf8proc utf8proc.h utf8proc)
