// Package tools pins the programs that check the code, in a module of their own
// so that what they need is not in the module graph of those who use Fencepost.
// .ci/run builds them: go -C internal/tools build -o DIRECTORY tool
package tools
