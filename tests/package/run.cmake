# The steps of the package tests: cmake -D mode=... -P run.cmake. Each stops with an error where something is wrong.
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(install_tree)
  file(REMOVE_RECURSE ${prefix})
  run(${CMAKE_COMMAND} --install ${build} --prefix ${prefix})
endfunction()

# What the consumer prints is checked as well as its status: softmax of {0, log 3} is {0.25, 0.75}.
function(check_consumer program)
  execute_process(COMMAND ${program} OUTPUT_VARIABLE out COMMAND_ERROR_IS_FATAL ANY)
  message("${out}")
  if(NOT out MATCHES "^everglow 0\\.[0-9]+\\.[0-9]+: 0\\.2500 0\\.7500\n")
    message(FATAL_ERROR "expected the version and 0.2500 0.7500")
  endif()
endfunction()

if(mode STREQUAL "install")
  install_tree()
  if(NOT EXISTS ${prefix}/${docdir}/LICENSE)
    message(FATAL_ERROR "expected the licence in ${prefix}/${docdir}")
  endif()

elseif(mode STREQUAL "tool")
  if(NOT EXISTS ${prefix}/${docdir}/docs/plan.schema.json)
    message(FATAL_ERROR "expected what --help points at in ${prefix}/${docdir}")
  endif()
  # The installed tool brings its cases with it: nothing of the source tree is at hand in an empty folder.
  file(MAKE_DIRECTORY ${prefix}/empty)
  set(tool ${prefix}/${bindir}/everglow)
  set(rows ${prefix}/empty/rows.jsonl)
  foreach(tag bench headline users)
    execute_process(COMMAND ${tool} bench all --tag ${tag} --list WORKING_DIRECTORY ${prefix}/empty OUTPUT_VARIABLE out
                    COMMAND_ERROR_IS_FATAL ANY)
    foreach(layer linear recurrent attention softmax)
      if(NOT out MATCHES "(^|\n)${layer} ")
        message(FATAL_ERROR "expected cases of ${layer} with the tag ${tag}, got:\n${out}")
      endif()
    endforeach()
  endforeach()
  execute_process(COMMAND ${tool} bench softmax --filter rows=2560 --seconds 0 --rotate 0 --threads 1 --out ${rows}
                  WORKING_DIRECTORY ${prefix}/empty COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${tool} bench compare ${rows} ${rows} WORKING_DIRECTORY ${prefix}/empty COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${tool} bench report ${rows} --html ${prefix}/empty/page.html WORKING_DIRECTORY ${prefix}/empty
                  COMMAND_ERROR_IS_FATAL ANY)
  file(READ ${prefix}/empty/page.html page)
  if(NOT page MATCHES "softmax rows=2560 columns=256")
    message(FATAL_ERROR "expected the case on the page of the report")
  endif()

elseif(mode STREQUAL "build_and_install")
  separate_arguments(options UNIX_COMMAND "${options}")
  run(${CMAKE_COMMAND} -S ${source} -B ${build} -G ${generator} -DCMAKE_CXX_COMPILER=${compiler} -DCMAKE_INSTALL_LIBDIR=${libdir}
      -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DEVERGLOW_TESTS=OFF -DEVERGLOW_TOOL=OFF ${options})
  run(${CMAKE_COMMAND} --build ${build} --parallel 2)
  install_tree()

elseif(mode STREQUAL "find_package")
  file(REMOVE_RECURSE ${build})
  run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${build} -G ${generator} -DCMAKE_CXX_COMPILER=${compiler}
      -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH=${prefix} "-Dcomponents=$ENV{EVERGLOW_COMPONENTS}")
  run(${CMAKE_COMMAND} --build ${build})
  check_consumer(${build}/consumer)

elseif(mode STREQUAL "pkg_config")
  file(REMOVE_RECURSE ${build})
  file(MAKE_DIRECTORY ${build})
  find_program(pkg_config NAMES pkg-config pkgconf REQUIRED)
  set(ENV{PKG_CONFIG_PATH} ${prefix}/${libdir}/pkgconfig)
  execute_process(COMMAND ${pkg_config} --cflags --libs everglow OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE
                  COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  run(${compiler} -std=c++20 ${CMAKE_CURRENT_LIST_DIR}/consumer/consumer.cpp ${CMAKE_CURRENT_LIST_DIR}/consumer/exports.cpp
      -o ${build}/consumer ${flags} -Wl,-rpath,${prefix}/${libdir})
  check_consumer(${build}/consumer)

else()
  message(FATAL_ERROR "unknown mode \"${mode}\"")
endif()
