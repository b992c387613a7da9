PS1= PS2= PS4='+ '
set +H +o history
unset HISTFILE PROMPT_COMMAND TMOUT
exec 61>&1 62>&2
__osb_say() { printf '%s' "$__osb_mark" >&61; printf '%s' "$__osb_mark" >&62; printf '%s\n' "$1" >&0; }
# Ends the cell $1 with the status $2; told twice, it ends it once.
__osb_end() {
    [ "$__osb_cell" = "$1" ] || return 0
    __osb_cell=
    case $2 in
        0) ;;
        130) __osb_say '{"kind":"error","name":"KeyboardInterrupt","value":"interrupted","traceback":["interrupted"]}' ;;
        *) __osb_say '{"kind":"error","name":"CommandExecError","value":"'"$2"'","traceback":["exit status '"$2"'"]}' ;;
    esac
    __osb_say '{"kind":"end"}'
}
